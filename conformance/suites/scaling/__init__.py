"""Tests of loss scaling."""
