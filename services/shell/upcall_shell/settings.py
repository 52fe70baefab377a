"""Settings from the environment that every service has: `UPCALL_…`."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ShellSettings(BaseSettings):
    """Where NATS and Redis are, how to get in, and how the process shows itself. Each is `UPCALL_<NAME>`."""

    # Empty is as good as unset: Compose has no other way to leave a variable out.
    model_config = SettingsConfigDict(env_prefix="UPCALL_", env_ignore_empty=True, extra="ignore")

    nats_url: str = "nats://127.0.0.1:4222"
    """One URL, or several separated by commas."""
    nats_user: str | None = None
    nats_password: str | None = None
    nats_tls_ca: str | None = None
    """Path of the CA that signed the server's certificate; set, the connection uses TLS."""
    nats_tls_cert: str | None = None
    nats_tls_key: str | None = None
    redis_url: str = "redis://127.0.0.1:6379/0"
    """`rediss://` for TLS; credentials in the URL."""

    http_host: str = "127.0.0.1"
    http_port: int = 8080
    """Of /healthz, /readyz and /metrics; 0 is a free one."""

    log_level: str = "INFO"
    log_json: bool = True
    stop_grace_ms: int = Field(default=20_000, ge=0)
    """How long a graceful stop waits for what is in hand."""
    retry_ms: str = "1000,5000,30000"
    """How long a message waits that could not be handled once, twice, three times and more."""
    figures_ms: int = Field(default=15_000, gt=0)
    """How often gauges are read that describe the whole deployment."""
    max_log_bytes: int = Field(default=10_000_000_000, gt=0)
    """Over it, what opens something is refused as overloaded."""

    def nats_servers(self) -> list[str]:
        """The servers to connect to."""
        return [url.strip() for url in self.nats_url.split(",") if url.strip()]

    def retry_pauses(self) -> tuple[float, ...]:
        """`retry_ms` in seconds."""
        return tuple(int(part) / 1000 for part in self.retry_ms.split(","))
