package config

import "strconv"

// HowToSet says how the user gives a key another value, as the end of a sentence: it names the flag, the variable or the file that its value came from, or
// else where it can be written.
func (c *Config) HowToSet(key string) string {
	switch from := c.values[key].Origin; from.Kind {
	case FromFlag:
		return "give " + from.Name + " another value"
	case FromEnv:
		return "change the environment variable " + from.Name
	case FromFile:
		if c.RestoredFrom == "" {
			return "change " + key + " in " + from.Name + ", line " + strconv.Itoa(from.Line)
		}
	case FromDefault:
		if c.File != "" && c.RestoredFrom == "" {
			return "write " + key + " into " + c.File
		}
	}
	if c.RestoredFrom != "" {
		return "write " + key + " into a file and name that by --ts-config: the settings are those of the last run, from " + c.RestoredFrom
	}
	return "write " + key + " into a file " + DefaultFile + " in this folder, where there is none, or into one that --ts-config names"
}
