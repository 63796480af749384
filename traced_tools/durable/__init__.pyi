from .workers import Workers as Workers
