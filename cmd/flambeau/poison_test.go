package main

import "testing"

func TestPoison(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "poison", "m"), `VERSION  DIGEST        BYTES  DEATHS  REFUSED  LAST     REQUEST  HOW
1.0      0123456789ab  3      2       for 9m   10s ago  id?1     signal: aborted; core dumped
1.0      ffffffff0123  7      1       no       1m ago   b        exit status 1
`)
	requireOutput(t, cli(a.env(), "poison", "m", "--lift", "01234567"), "1 may be tried again\n")
	if request, _ := a.last(); request != "DELETE /admin/models/m/poison?digest=01234567" {
		t.Error(request)
	}
	if got := cli(a.env(), "poison", "x"); got.status != exitFailed || got.stderr != "flambeau poison: error: Model not found: x\n" {
		t.Errorf("%+v", got)
	}
}
