"""Train the parts that learn: policy, extractor, guide and admission."""
