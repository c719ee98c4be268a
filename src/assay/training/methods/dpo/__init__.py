"""Direct preference optimization: DPO and its variants."""
