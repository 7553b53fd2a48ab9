"""The report: records side by side in one HTML page that needs no network."""

from results.report.page import render, write

__all__ = ["render", "write"]
