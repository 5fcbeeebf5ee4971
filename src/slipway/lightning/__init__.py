"""Integration of Lightning: ``SlipwayCallback`` (docs/howto/frameworks.md)."""

from slipway.lightning.callback import SlipwayCallback as SlipwayCallback
