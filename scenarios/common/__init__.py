"""What several scenarios watch and judge by: each a question that holds for every release.

A module is a pair: what a rank writes down, and how records of it are judged. The parent judges
without torch, so torch is imported in the functions of the ranks alone. A finding names its unit.
"""
