package handlersdk

import "context"

// Whole answers a batch with a Streamer and without pieces: they are put before what ends each answer. It is all that the Handle of most Streamers needs.
func Whole(ctx context.Context, s Streamer, items []Item) ([]Result, error) {
	first := make([]*Result, len(items))
	bodies := make([][]byte, len(items))
	results, err := s.HandleStream(ctx, items, func(index int, piece Result) error {
		if first[index] == nil {
			first[index] = &piece
		}
		bodies[index] = append(bodies[index], piece.Body...)
		return nil
	})
	if err != nil || len(results) != len(items) {
		return results, err
	}
	for i := range results {
		if first[i] == nil || results[i].Err != nil {
			continue
		}
		results[i].Status, results[i].Header = first[i].Status, first[i].Header
		results[i].Body = append(bodies[i], results[i].Body...)
	}
	return results, nil
}
