"""A small Hugging Face Hub on this machine: repositories, branches, commits and files of one user."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "Kq7vB2xWm9LtYzRc" * 2


class Hub:
    """A server of repositories, which needs a token for writing. Refused requests, and all requests for a repository
    named `quoting`, quote the token in their answer, as badly written servers do.

    Attributes:
      files: of each commit, by path.
      branches: of each repository.
      private: the private repositories.
      requests: all requests so far.
    """

    def __init__(self):
        self.files, self.branches, self.private, self.requests = {}, {}, set(), []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = unquote(urlsplit(self.path).path)
                hub.requests.append((self.command, path))
                status, answer, headers = hub.answer(self.command, path, body, self.headers.get("Authorization"))
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Length": len(content), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_POST = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def newest(self, repository, branch="main"):
        """Return the files of a branch, by path."""
        return self.files[self.branches[repository][branch]]

    def answer(self, method, path, body, authorization):
        allowed = authorization == f"Bearer {TOKEN}"
        if method == "POST" and not allowed:
            return 401, {}, {"X-Error-Message": f"refused: {authorization}"}
        if path == "/api/repos/create":
            given = json.loads(body)
            if given["name"] == "quoting":
                return 400, {}, {"X-Error-Message": f"malformed: {authorization}"}
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            if name in self.branches:
                return 409, {"url": f"{self.endpoint}/{name}"}, {}
            self.branches[name] = {"main": self._commit({".gitattributes": b""})}
            self.private |= {name} if given.get("private") or given.get("visibility") == "private" else set()
            return 200, {"url": f"{self.endpoint}/{name}", "id": name}, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        match = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+)(?:/(\w+)/([^/]+)(?:/(.+))?)?", path)
        repository, what, revision, file = match.groups() if match else (None,) * 4
        if repository not in self.branches or (repository in self.private and not allowed):
            return 401, {}, {"X-Error-Code": "RepoNotFound", "X-Error-Message": f"Not found: {authorization}"}
        branches = self.branches[repository]
        if what == "branch":
            if revision in branches:
                return 409, {}, {}
            branches[revision] = branches["main"]
            return 200, {}, {}
        commit = branches.get(revision or "main", revision)
        if commit not in self.files:
            return 404, {}, {"X-Error-Code": "RevisionNotFound"}
        files = self.files[commit]
        if what == "preupload":
            modes = [{"path": entry["path"], "uploadMode": "regular"} for entry in json.loads(body)["files"]]
            return 200, {"files": [{**entry, "shouldIgnore": False} for entry in modes]}, {}
        if what == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            new = {entry["value"]["path"]: entry["value"]["content"] for entry in lines if entry["key"] == "file"}
            commit = self._commit({**files, **{name: base64.b64decode(text) for name, text in new.items()}})
            branches[revision] = commit
            url = f"{self.endpoint}/{repository}/commit/{commit}"
            return 200, {"success": True, "commitOid": commit, "commitUrl": url}, {}
        if what == "tree":
            return 200, [{"type": "file", "path": p, "size": len(x), "oid": _sha(x)} for p, x in files.items()], {}
        if what == "resolve":
            return 200, files[file], {"ETag": f'"{_sha(files[file])}"', "X-Repo-Commit": commit}
        return 200, {"id": repository, "sha": commit, "siblings": [], "private": False}, {}

    def _commit(self, files):
        commit = _sha(json.dumps({name: _sha(x) for name, x in files.items()}).encode() + bytes([len(self.files)]))
        self.files[commit] = files
        return commit


@contextlib.contextmanager
def serving(directory, monkeypatch):
    """Serve a hub to `huggingface_hub` in this process, with the cache in a directory."""
    import huggingface_hub
    from huggingface_hub import constants

    hub = Hub()
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)  # HF_ENDPOINT is read only when the package is imported
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(directory / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    try:
        yield hub
    finally:
        huggingface_hub.close_session()
        hub.close()


def _sha(content):
    return hashlib.sha1(content).hexdigest()
