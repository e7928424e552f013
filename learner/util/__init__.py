"""Shared helpers for text, trees and files."""
