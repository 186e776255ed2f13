"""Servers that answer as vLLM does, or fail as they are told to."""

import http.server
import json
import socket
import threading
import time

METRICS = """\
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""
TOKENS = 4


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/metrics":
            self.answer(200, METRICS, "text/plain")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 100_000}]}))
        else:
            self.answer(200, "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        mode = self.server.mode
        if mode == "close":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif mode.isdecimal():
            self.answer(int(mode), '{"error": {"message": "told to"}}')
        else:
            self.stream(body, mode)

    def stream(self, body, mode):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if mode == "silent":
            time.sleep(3)
            self.close_connection = True
            return
        for token in range(TOKENS):
            time.sleep(0.05)
            self.event({"choices": [{"index": 0, "delta": {"content": f"token {token} "}, "finish_reason": None}]})
            if mode == "break":
                self.close_connection = True
                return
        prompt_tokens = len(body["messages"][0]["content"]) // 4
        self.event({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": TOKENS}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data):
        data = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", **data}
        self.chunk(f"data: {json.dumps(data)}\n\n".encode())

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """`mode`: well, silent, break (after the first token), close (before an answer), or a status."""

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), Handler)
        self.mode = "well"
        self.name = f"127.0.0.1:{port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # Tidegate has closed the connection.
