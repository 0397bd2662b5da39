"""Warpgroups, and the named barriers by which they wait for each other."""

WARP = 32
WARPS = 4  # of a warpgroup
WARPGROUP = WARPS * WARP
ROWS = 64  # of a warpgroup: wgmma's M

# Two warpgroups wait at TURN and TURN + 1 for their turns, all of them at MEETING, the first id that TileLang takes
# itself, and warpgroup w at OWN + w for its own warps.
TURN, MEETING, OWN = 1, 3, 4
