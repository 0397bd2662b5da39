"""This folder reads files: schedules, with their lines, bases and names, and the rules that choose one for a call.

It also has the rules that choose the operator of a call's gradients.
"""
