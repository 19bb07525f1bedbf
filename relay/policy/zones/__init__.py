"""What a zone makes of an instant, for limits: `calendar` has its periods and the hours of a week."""
