"""Programs that run the workloads with other PPO implementations. Each is run by an interpreter that has the implementation.

After every update the programs print `steps N`, where N is the number of environment steps so far.
"""
