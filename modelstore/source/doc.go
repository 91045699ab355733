// Package source fetches model archives from file, http, https and object-store URLs, and from nowhere that the operator has not allowed.
package source
