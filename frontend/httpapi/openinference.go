package httpapi

import "strings"

// openInference serves the little that TorchServe has of the Open Inference Protocol over REST, its spelling included.
func (a *API) openInference(q *request) (answer, bool, error) {
	s := q.segments
	if !a.opts.OpenInference || s[1] != "v2" {
		return answer{}, false, nil
	}
	switch n := len(s); {
	case n == 2:
		return jsonAnswer([]byte("{\n  \"name\": \"Torchserve\",\n  \"version\": \"" + torchServeVersion + "\",\n  \"extenstion\": [\n    \"kserve\",\n    \"kubeflow\"\n  ]\n}\n")), true, nil
	case n == 4 && s[2] == "health" && s[3] == "live":
		return jsonAnswer([]byte("{\n  \"live\": true\n}\n")), true, nil
	case n == 4 && s[2] == "health" && s[3] == "ready":
		return jsonAnswer([]byte("{\n  \"ready\": true\n}\n")), true, nil
	case n > 5 && strings.Contains(q.path, "/versions"):
		ans := jsonAnswer([]byte("{\n  \"error\": \"Model versioning is not yet supported.\"\n}\n"))
		ans.status = statusNotImplemented
		return ans, true, nil
	}
	return answer{}, false, nil
}
