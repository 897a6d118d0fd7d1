"""Episodes of a program that calls the policy as a model of the OpenAI API, as rollouts with exact tokens."""
