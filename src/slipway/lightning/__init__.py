"""Lightning in a run folder: ``SlipwayCallback`` (docs/frameworks.md)."""

from slipway.lightning.callback import SlipwayCallback as SlipwayCallback
