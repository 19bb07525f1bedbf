"""Verbs on the spool as a whole, and on messages as files.

convert   `relay spool convert`, from one engine to another; offline
fsck      `relay fsck`: what is not as it should be; read only
export    `relay export`: a message as .eml, with its envelope
"""
