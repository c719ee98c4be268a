"""A run's metrics in tools that people look at already: TensorBoard, MLflow, Weights & Biases, trackio."""
