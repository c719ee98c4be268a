# assay: the server of both APIs, a worker for jobs and one for sessions; the check kills all three.
export ASSAY_HOME="$FOLDER/home"
mkdir -p "$ASSAY_HOME"
run -m assay serve --models "$FOLDER/models" --port "$PORT"
run -m assay serve worker
run -m assay serve sessions
