"""Settings of the service, and the checks of texts that settings and requests share."""

from darksight_service.settings.settings import PassiveModel, Settings, read_settings, service_links

__all__ = ["PassiveModel", "Settings", "read_settings", "service_links"]
