"""A lowering makes a TileLang kernel of a Program, and has a folder here. Kernels begin with `import tilelang`; everything else imports it late."""
