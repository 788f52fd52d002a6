"""Train in a custom environment, evaluate the policy, and continue the training.

python own_environment.py [STEPS [RANKS]]
"""

import sys

from my_envs import make_env

STEPS, RANKS = (*map(int, sys.argv[1:]), *(50_000, 1)[len(sys.argv) - 1 :])

# [essential]
import lockstep

run = lockstep.train(env=make_env, total_steps=STEPS, ranks=RANKS, plan={"shards": 2}, ppo={"learning_rate": 1e-3})
print(run.path, run.return_mean, run.digest)
print(lockstep.evaluate(run, episodes=20).return_mean)
run = lockstep.resume(run, total_steps=2 * STEPS)
# [end]
print(run.metrics[-1]["env_steps"], "steps in total")
