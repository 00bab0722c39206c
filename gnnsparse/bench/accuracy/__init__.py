"""`gnnsparse bench accuracy`: what each precision does to results, measured against float64."""
