"""These are a warpgroup's numbers, and those of named barriers."""

WARP = 32
WARPS = 4  # of a warpgroup
WARPGROUP = WARPS * WARP
ROWS = 64  # of a warpgroup: wgmma's M
ALL_LANES = 0xFFFFFFFF

# Named barriers. Two warpgroups wait at TURN and TURN + 1 for their turns.
TURN = 1
# The first that TileLang takes itself: there all warpgroups meet.
MEETING = 3
# Warpgroup w waits at OWN + w for its own warps.
OWN = 4
