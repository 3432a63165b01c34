"""Shims of others: each provider's file lists them from source code, without importing what it lists."""
