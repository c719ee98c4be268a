"""The objects and functions of `import assay`; the commands of `assay.cli` call the same ones below."""
