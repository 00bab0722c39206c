"""`gnnsparse bench fit`: measures a GPU and writes its record (gnnsparse.gpus)."""
