"""Train one run in two workers of Ray Train on CPUs: `python examples/clusters/ray_train.py DIRECTORY EPOCHS`.

DIRECTORY is on storage that all workers share. After the loss of a worker Ray starts both again, and the run resumes.
"""

import sys

import ray
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxConfig, JaxTrainer


def train(config):
    """Train in one worker, which Ray has connected to the others."""
    import optax

    import learner
    from learner.data import digits
    from learner.examples.models import MLP

    def report(info, model):
        ray.train.report({"epoch": info.epoch, **info.values})

    builder = (
        learner.LearnerBuilder(config["run"]).num_epochs(config["epochs"]).with_batch_size(64).renderer(None).resume()
    )
    builder.with_file_checkpointer(keep_last=1).on_epoch_end(report)
    result = builder.build(lambda rngs: MLP([64, 16, 10], rngs=rngs), optax.adam, 1e-2).fit(
        digits("train"), digits("valid")
    )
    # Ray's result has a copy of the run: `learner.load_checkpoint(result.checkpoint.path)`.
    is_first = ray.train.get_context().get_world_rank() == 0
    checkpoint = Checkpoint.from_directory(config["run"]) if is_first else None
    ray.train.report({"steps": result.summary["steps"]}, checkpoint=checkpoint)


def main(directory, epochs):
    """Return Ray's result."""
    trainer = JaxTrainer(
        train,
        train_loop_config={"run": f"{directory}/run", "epochs": epochs},
        # On CPUs Ray connects the workers only as it does for GPUs. For GPUs, leave `jax_config` and JAX_PLATFORMS out.
        scaling_config=ScalingConfig(num_workers=2),
        jax_config=JaxConfig(use_gpu=True),
        run_config=RunConfig(
            name="train",
            storage_path=f"{directory}/ray",
            failure_config=FailureConfig(max_failures=3),
            worker_runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}},
        ),
    )
    return trainer.fit()


if __name__ == "__main__":
    result = main(sys.argv[1], int(sys.argv[2]))
    print(result.metrics, result.checkpoint.path)
