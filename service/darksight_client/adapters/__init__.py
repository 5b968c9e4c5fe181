"""DarkSight in frameworks that serve and track models; each module needs the package that it is for.

    asgi            middleware for FastAPI, Starlette and other ASGI applications
    remote          gate for handlers of BentoML, Ray Serve and other Python servers
    mlflow          bundle as an artifact, and a model of MLflow that returns decisions
    sklearn         a classifier of scikit-learn that abstains
    transformers    outputs of Hugging Face pipelines as probabilities
    logprobs        responses of language models as rows of the most probable classes

`asgi` and `remote` call the service, which stores and counts what they send; `mlflow` and `sklearn` load a bundle.
"""
