#!/bin/bash
# Kills a server's processes and starts them: start.sh NAME PYTHON FOLDER PORT; without a port it only kills.
NAME=$1 PYTHON=$2 FOLDER=$3 PORT=$4
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$FOLDER" || exit 1
touch pids
while read -r pid; do kill -9 -- "-$pid" 2>/dev/null; done < pids
: > pids
[ -n "$PORT" ] || exit 0

run() { # a command in a process group of its own
  setsid "$PYTHON" -W ignore "$@" >> log 2>&1 &
  echo $! >> pids
}

. "$HERE/$NAME.sh"
