package httpapi

// adminPaths are the routes that TorchServe does not have.
func adminPaths() []apiPath {
	name := pathParam("model_name", "The model's name.")
	limit := queryParam("limit", "integer", fewEvents, "How many to give at most, 1000 at most: the newest ones.")
	get := func(path, id, what string, parameters ...apiParameter) apiPath {
		return apiPath{path, []apiOperation{{method: "get", ID: id, summary: what, answers: jsonType, parameters: parameters, statuses: []int{200, 404, 500}}}}
	}
	post := func(path, id, what string, statuses []int, parameters ...apiParameter) apiPath {
		return apiPath{path, []apiOperation{{method: "post", ID: id, summary: what, answers: jsonType, parameters: parameters, statuses: statuses}}}
	}
	const ofModel = "/admin/models/{model_name}/"
	return []apiPath{
		get("/admin/models", "adminModels", "Lists all the versions of all the models, and how they run."),
		get("/admin/events", "adminEvents", "Tells what happened, the oldest first.",
			queryParam("model", "string", nil, "Only events of this model."), queryParam("version", "string", nil, "Only events of this version."),
			queryParam("kind", "string", nil, "Only events of this kind."),
			queryParam("after", "integer", nil, "Only events after the one with this id, and the first of them."), limit),
		get("/admin/store", "adminStore", "Lists the archives of the model store, and what was decided about them."),
		get(ofModel+"history", "adminHistory", "Tells what changed what serves of a model, the oldest first.", name, limit),
		post(ofModel+"rollback", "adminRollback", "Makes an earlier archive of a model serve.", []int{200, 400, 404, 409, 500}, name,
			queryParam("version", "string", nil, "The version; not given: the default one."),
			queryParam("to", "string", nil, "The beginning of the archive's digest; not given: the one before.")),
		post(ofModel+"reload", "adminReload", "Looks at a model's files again, also at those that failed.", []int{200, 400, 404, 500}, name),
		{ofModel + "traffic", []apiOperation{
			{
				method: "get", ID: "adminTraffic", summary: "Tells how requests find the versions of a model.", answers: jsonType,
				parameters: []apiParameter{name}, statuses: []int{200, 404, 500},
			},
			{
				method: "put", ID: "adminSetTraffic", summary: "Sets how requests find the versions of a model; replaces what was set.", answers: jsonType,
				takesJSON:  "labels (label: version), weights (version or label: percent), header (a name), sticky (header:NAME or cookie:NAME).",
				parameters: []apiParameter{name}, statuses: []int{200, 400, 404, 500},
			},
		}},
	}
}
