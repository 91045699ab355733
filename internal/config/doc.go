// Package config reads the server's settings once, from config.properties, the command line and the environment, and checks them all: the only
// place that knows their names, defaults and precedence.
package config
