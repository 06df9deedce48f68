"""The kubelet's gRPC messages, generated from the `.proto` files beside them by `make proto`; nothing by hand."""
