"""The roles by name, and the check of their settings before they are built."""

from collections.abc import Callable

from hardwon.trainers.config.parsing import parse
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.config.roles import RoleConfig

from .admission import AdmissionRole, AdmissionSettings
from .base import Parts, PolicyRole, Role
from .extractor import ExtractorRole, ExtractorSettings
from .guides.role import GuideRole, GuideSettings

ROLES: dict[str, Callable[[Parts], Role]] = {
    "policy": PolicyRole,
    "guide": GuideRole,
    "extractor": ExtractorRole,
    "admission": AdmissionRole,
}
"""Constructor of each role, by name."""
_SETTINGS = {
    "policy": PolicySettings,
    "guide": GuideSettings,
    "extractor": ExtractorSettings,
    "admission": AdmissionSettings,
}


def check_settings(config: RoleConfig, name: str) -> None:
    """Check the names and values of a role's settings before the role is built. Roles of your own are not checked."""
    if name in _SETTINGS:
        parse(_SETTINGS[name], config.settings, f"roles.{name}.settings")
