package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// fairnessKey is by what the clients of a model are told apart whose settings do not say.
func fairnessKey() Option {
	return Option{
		Key: "fairness_key", Type: "off, client_ip, token, header:NAME", Default: "off", Env: envName("fairness_key"),
		Doc: "By what clients are told apart that share a model's queue and take turns in it; `fairness` in `model-config.yaml` says otherwise for one model.",
		set: func(c *Config, s string) error {
			word := strings.TrimSpace(s)
			const header = "header:"
			switch lower := strings.ToLower(word); {
			case lower == "" || lower == "off":
				c.FairnessKey = ""
			case lower == "client_ip" || lower == "token":
				c.FairnessKey = lower
			case strings.HasPrefix(lower, header) && strings.TrimSpace(word[len(header):]) != "" && !strings.ContainsAny(strings.TrimSpace(word[len(header):]), " \t:,;\"()"):
				c.FairnessKey = header + strings.TrimSpace(word[len(header):])
			default:
				return fmt.Errorf("%q is none of off, client_ip, token, and header: with a header's name", s)
			}
			return nil
		},
	}
}

// fairnessShare is the part of a queue that one client may have while others want it.
func fairnessShare() Option {
	return Option{
		Key: "fairness_max_share", Type: "number", Default: "0.5", Env: envName("fairness_max_share"),
		Doc: "The part of a model's queue that one client may have while others want it, above 0 and at most 1; only with `fairness_key`.",
		set: func(c *Config, s string) error {
			share, err := strconv.ParseFloat(s, 64)
			if err != nil || math.IsNaN(share) || share <= 0 || share > 1 {
				return fmt.Errorf("%q is not a number above 0 and at most 1", s)
			}
			c.FairnessShare = share
			return nil
		},
	}
}
