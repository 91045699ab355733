package batch

import "container/list"

// lane is what waits of one class. Each client's requests are in the order in which they came, and the clients take turns: one request each. So of k clients
// that wait none waits for more than k-1 others before its next request is taken, however many those have sent. Requests of no client ("") are those of one.
// The zero value is ready.
type lane struct {
	guests list.List // of *guest, that is next first
	known  map[string]*guest
}

// guest is a client of which something waits.
type guest struct {
	client string
	jobs   list.List // of *pending
	place  *list.Element
}

func (l *lane) first() *pending { return first(&guestIn(l.guests.Front()).jobs) }

func guestIn(e *list.Element) *guest {
	g, ok := e.Value.(*guest)
	if !ok {
		panic("batch: something else than a client waits")
	}
	return g
}

// add lets a request wait behind those of its client, and a client that is new behind the others; or both before them.
func (l *lane) add(p *pending, before bool) {
	g := l.known[p.item.Client]
	if g == nil {
		g = &guest{client: p.item.Client}
		g.place = l.guests.PushBack(g)
		if l.known == nil {
			l.known = map[string]*guest{}
		}
		l.known[g.client] = g
	}
	if before {
		l.guests.MoveToFront(g.place)
		p.place = g.jobs.PushFront(p)
	} else {
		p.place = g.jobs.PushBack(p)
	}
}

// remove takes out a request, and its client when that has no other.
func (l *lane) remove(p *pending) {
	g := l.known[p.item.Client]
	g.jobs.Remove(p.place)
	p.place = nil
	if g.jobs.Len() == 0 {
		l.guests.Remove(g.place)
		delete(l.known, g.client)
	}
}

// pass ends the turn of a request's client.
func (l *lane) pass(p *pending) { l.guests.MoveToBack(l.known[p.item.Client].place) }

// last gives the last request of a client, nil for none.
func (l *lane) last(client string) *pending {
	if g := l.known[client]; g != nil {
		return pendingIn(g.jobs.Back())
	}
	return nil
}
