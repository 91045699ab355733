package wire

import (
	"net"
	"time"
)

// SetReadDeadline sets net/http's deadline. A limit of ours that ends earlier holds all the same.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = t
	return c.applyDeadline()
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Write sends p. A client that does not take it in time loses the connection, so that nobody holds an answer's memory by not
// reading it.
func (c *Conn) Write(p []byte) (int, error) {
	if pause := c.owner.limits.Pause; pause > 0 {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(pause + time.Duration(len(p)/slowest)*time.Second)); err != nil {
			return 0, err //nolint:wrapcheck // it stands for the connection itself
		}
	}
	return c.Conn.Write(p) //nolint:wrapcheck // it stands for the connection itself
}

// CloseWrite closes our half of the connection, if its kind has halves.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite() //nolint:wrapcheck // it stands for the connection itself
	}
	return net.ErrClosed
}

// Close ends the connection: at once when its client has nothing more to send, else as Listener.Wait says.
func (c *Conn) Close() error {
	c.mu.Lock()
	unread := c.unread
	c.unread = false
	c.mu.Unlock()
	if unread {
		c.owner.linger(c.Conn)
		return nil
	}
	return c.Conn.Close() //nolint:wrapcheck // it stands for the connection itself
}

// startClock lets the next reads take d altogether.
func (c *Conn) startClock(d time.Duration) {
	if d > 0 {
		c.ticking = true
		c.setLimit(time.Now().Add(d))
	}
}

func (c *Conn) stopClock() {
	if c.ticking {
		c.ticking = false
		c.setLimit(time.Time{})
	}
}

func (c *Conn) setLimit(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	_ = c.applyDeadline() // fails only on a closed connection, and then so does the read
}

// applyDeadline sets the earlier of the two deadlines. mu is held, so that the last one set is the last one applied; setting a
// deadline does not block.
func (c *Conn) applyDeadline() error {
	t := c.asked
	if t.IsZero() || !c.limit.IsZero() && c.limit.Before(t) {
		t = c.limit
	}
	return c.Conn.SetReadDeadline(t) //nolint:wrapcheck // it stands for the connection itself
}
