"""HTTP server for a model: a small API with micro-batching, and a demo page (docs/serving.md)."""

from src.inference.server.app import check_address, create_app, parse_address, serve
from src.inference.server.limits import Limits
from src.inference.server.measurements import open_access_log
from src.inference.server.middleware import parse_hosts

__all__ = ["Limits", "check_address", "create_app", "open_access_log", "parse_address", "parse_hosts", "serve"]
