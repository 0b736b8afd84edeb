"""FedFa: fully asynchronous federated learning (Xu et al., IJCAI 2024) as a microservice system."""

__version__ = "0.1.0"
