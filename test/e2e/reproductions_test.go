package e2e

// The cases of public bug reports about other servers that have to do with batches, overload, crashes, health and the end of a server, and with what a handler gets and gives; and which
// tests would fail on their faults. Those about the model store are in ../store/reproductions_test.go:
//
//	one bad request in a batch                                e2e.TestStatusOfOneRequestInABatch, e2e.TestEveryAnswerBelongsToItsRequest, e2e.TestCorpus
//	a handler that returns too few results                    e2e.TestTooFewResults, host.TestFailedResults, e2e.TestCorpus
//	errors of handlers                                        e2e.TestErrorsOfHandlers, host.TestHandlerFailures, e2e.TestCorpus
//	what a handler gets of a body                             e2e.TestBodiesThatHandlersSee, e2e.TestCorpus, httpapi.TestRows
//	what a handler may return                                 e2e.TestWhatHandlersReturn, e2e.TestCorpus
//	a handler that prints                                     e2e.TestHandlerThatPrints, e2e.TestHandlersOutputIsInTheLog, host.TestOutput, e2e.TestCorpus
//	styles of handlers                                        e2e.TestStylesOfHandlers, e2e.TestWhyAModelDoesNotLoad, e2e.TestCorpus
//	tries to load that have an end                            e2e.TestTriesEnd, rollout.TestFailedLoadIsRetriedUntilTheWindowIsOver, rollout.TestCrashLoopSlowsDown
//	a worker that ends in the middle of a request             e2e.TestRequestThatEndsItsWorker, e2e.TestOneRequestThatAborts, e2e.TestKilledWorkerCostsItsOwnBatchOnly, e2e.TestCrashesAreTold
//	a handler that is too slow                                e2e.TestSlowHandlerMeetsItsLimit, e2e.TestResponseTimeout, rollout.TestResponseTimeoutKillsTheWorkerAndServesOn
//	a full queue                                              e2e.TestAFullQueueSaysWhy, dispatch.TestAFullQueueIsExplained, batch.TestFullQueueRefusesAtOnce
//	what a lone request pays of the batch delay               e2e.TestWhatALoneRequestPays, batch.TestLoneRequestWaitsTheDelayAndAFullBatchDoesNot, batch.TestWaitingForAWorkerCountsAsDelay, batch.TestLoneClientSoonWaitsForNobody
//	bodies beyond the limits                                  e2e.TestLimitsOfBodies, httpapi.TestTooLargeIsSaidAtOnce, host.TestAnswersOverTheLimitCostOneItem
//	a signal to end while requests run and wait               e2e.TestServerIsAskedToEnd, e2e.TestEndIsBounded, e2e.TestDrainTakesRequestsForAWhile, e2e.TestSecondSignal
//	honest health                                             e2e.TestHealthIsHonest, httpapi.TestReadyz, httpapi.TestDrainingIsNotReady, httpapi.TestStartupz
//	metrics without settings                                  e2e.TestMetricsWithoutSettings, main.TestMetricsMode, telemetry.TestLabelBudget
//	running work before a model or a worker is taken away     e2e.TestRunningWorkBeforeUnregistering, e2e.TestUnregisterAndScaleDownLoseNothing, dispatch.TestUnregisterAnswersWhatWaits
//
// TestReproductionsAreThere holds both lists to the tests that there are.

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestReproductionsAreThere: each of the cases is in one of the two tables, and each test that a table names exists.
func TestReproductionsAreThere(t *testing.T) {
	t.Parallel()
	rows := slices.Concat(Reproductions(t, "reproductions_test.go"), Reproductions(t, "../store/reproductions_test.go"))
	RequireTests(t, rows, map[string]string{
		"e2e": ".", "store": "../store", "batch": "../../frontend/batch", "dispatch": "../../frontend/dispatch", "httpapi": "../../frontend/httpapi", "host": "../../plugins/host",
		"rollout": "../../modelstore/rollout", "deploy": "../../modelstore/deploy", "watch": "../../modelstore/watch", "config": "../../internal/config",
		"telemetry": "../../internal/telemetry", "main": "../../cmd/flambeau",
	})
	for _, name := range []string{
		"one bad request in a batch", "a handler that returns too few results", "errors of handlers", "settings from several sources, and what a restart keeps",
		"what a handler gets of a body", "handlers of TorchServe without torch and torchserve", "what a handler may return", "a handler that prints", "styles of handlers",
		"a handler that cannot initialize", "a worker that ends in the middle of a request", "a handler that is too slow", "a model that loads for longer than a minute", "a full queue",
		"what a lone request pays of the batch delay", "a model replaced under load", "an archive that is copied slowly", "a new version that is no good", "bodies beyond the limits",
		"models with the same names inside", "requirements of models", "a signal to end while requests run and wait", "honest health", "metrics without settings",
		"running work before a model or a worker is taken away",
	} {
		if !slices.ContainsFunc(rows, func(r Reproduction) bool { return r.Case == name }) {
			t.Errorf("no table has the case %q", name)
		}
	}
}

// serving puts archives into the store, starts a server, and registers each of them with one worker.
func (b *Box) serving(t *testing.T, options Options, archives ...Archive) *Server {
	t.Helper()
	for _, a := range archives {
		b.Put(t, a.Name+".mar", a.Bytes(t))
	}
	s := b.Start(t, options)
	for _, a := range archives {
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url="+a.Name+".mar&initial_workers=1&synchronous=true", nil)
	}
	return s
}

// timed is an answer and how long it took.
type timed struct {
	Answer

	took time.Duration
}

const asJSON = "application/json"

// predict sends a body to a model. For goroutines: an error is the test's.
func (s *Server) predict(t *testing.T, model, kind, body string, header ...string) timed {
	t.Helper()
	begun := time.Now()
	answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/"+model, []byte(body), append(header, "Content-Type", kind)...)
	if err != nil {
		t.Errorf("%s: %v", body, err)
	}
	return timed{answer, time.Since(begun)}
}

// atOnce sends JSON bodies at the same moment, and gives the answers in the bodies' order.
func (s *Server) atOnce(t *testing.T, model string, bodies ...string) []timed {
	t.Helper()
	answers := make([]timed, len(bodies))
	var all sync.WaitGroup
	for i, body := range bodies {
		all.Go(func() { answers[i] = s.predict(t, model, asJSON, body) })
	}
	all.Wait()
	return answers
}
