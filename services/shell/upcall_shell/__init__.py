"""What every service process needs around its core: connection, guarded append, ack policy, health."""
