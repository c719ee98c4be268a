"""Runs of other trackers, read from the files they leave: TensorBoard, MLflow, W&B, trackio, Neptune."""
