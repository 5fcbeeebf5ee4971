"""Integration of Lightning: ``SlipwayCallback`` (docs/frameworks.md)."""

from slipway.lightning.callback import SlipwayCallback as SlipwayCallback
