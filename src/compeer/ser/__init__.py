"""Building the SER dataset: histories with a candidate turn, a verdict on each step, and a preference."""

from compeer.ser.build import SerSettings, build_ser
from compeer.ser.record import SerRecord, read_records, write_records
from compeer.ser.sampling import sample_rounds

__all__ = ["SerRecord", "SerSettings", "build_ser", "read_records", "sample_rounds", "write_records"]
