package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// goods are what the shop sells, with their prices in cents.
var goods = message{"lamp": 2490., "mug": 790., "notebook": 350., "pen": 120., "stool": 4900.}

func text(in message, key string) string { s, _ := in[key].(string); return s }

// storefront is what users open: HTTP/1.1.
func storefront() ([]door, error) {
	mux := http.NewServeMux()
	handle(mux, "GET /{$}", func(r *http.Request) (any, error) {
		list, err := read(r.Context(), "catalog", "List", message{})
		if err != nil {
			return nil, err
		}
		var also []string
		if err := post(r.Context(), "http://recommendations:8081/", "lamp", &also); err != nil {
			return nil, err
		}
		return message{"goods": list, "also": also}, nil
	})
	handle(mux, "POST /cart", func(r *http.Request) (any, error) {
		return call(r.Context(), "cart", "Add", message{"user": r.FormValue("user"), "item": r.FormValue("item")})
	})
	handle(mux, "POST /checkout", func(r *http.Request) (any, error) {
		return call(r.Context(), "checkout", "Order", message{"user": r.FormValue("user")})
	})
	return []door{httpDoor("8080", mux)}, nil
}

// catalog has the list of goods by gRPC, and recommendations by HTTP, on a port and a Service of their own.
func catalog() ([]door, error) {
	mux := http.NewServeMux()
	handle(mux, "POST /{$}", func(r *http.Request) (any, error) {
		var item string
		if err := json.NewDecoder(r.Body).Decode(&item); err != nil {
			return nil, err
		}
		others := slices.DeleteFunc(slices.Sorted(maps.Keys(goods)), func(g string) bool { return g == item })
		rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		return others[:2], nil
	})
	list := func(context.Context, message) (message, error) { return goods, nil }
	return []door{grpcDoor("8080", "catalog", map[string]method{"List": list}), httpDoor("8081", mux)}, nil
}

// cart keeps carts in a store that has Redis's protocol.
func cart() ([]door, error) {
	store := redis.NewClient(&redis.Options{Addr: "carts:6379", Dialer: dial, MaxRetries: -1, ReadTimeout: callTimeout, ContextTimeoutEnabled: true, DisableIdentity: true})
	return []door{grpcDoor("8080", "cart", map[string]method{
		"Add": func(ctx context.Context, in message) (message, error) {
			if goods[text(in, "item")] == nil {
				return nil, status.Errorf(codes.InvalidArgument, "the shop does not sell %q", text(in, "item"))
			}
			n, err := store.HIncrBy(ctx, "cart:"+text(in, "user"), text(in, "item"), 1).Result()
			return message{"n": float64(n)}, err
		},
		"Get": func(ctx context.Context, in message) (message, error) {
			all, err := store.HGetAll(ctx, "cart:"+text(in, "user")).Result()
			out := message{}
			for item, n := range all {
				out[item] = n
			}
			return out, err
		},
		"Empty": func(ctx context.Context, in message) (message, error) {
			return message{}, store.Del(ctx, "cart:"+text(in, "user")).Err()
		},
	})}, nil
}

// checkout makes an order of a cart: it calls four services, and writes the order into PostgreSQL.
func checkout() ([]door, error) {
	config, err := pgxpool.ParseConfig(fmt.Sprintf("host=orders user=shop dbname=postgres sslmode=disable password=%s", os.Getenv("ORDERS_PASSWORD")))
	if err != nil {
		return nil, fmt.Errorf("shop: the address of orders: %w", err)
	}
	config.ConnConfig.DialFunc = dial
	db, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("shop: orders: %w", err)
	}
	return []door{grpcDoor("8080", "checkout", map[string]method{"Order": func(ctx context.Context, in message) (message, error) {
		user := message{"user": text(in, "user")}
		items, err := read(ctx, "cart", "Get", user)
		if err != nil {
			return nil, err
		}
		list, err := read(ctx, "catalog", "List", message{})
		if err != nil {
			return nil, err
		}
		cents := 0.
		for item := range items {
			price, _ := list[item].(float64)
			cents += price
		}
		var quote struct{ Cents float64 }
		if err := post(ctx, "http://shipping:8080/quote", items, &quote); err != nil {
			return nil, err
		}
		paid, err := call(ctx, "payment", "Charge", message{"user": user["user"], "cents": cents + quote.Cents})
		if err != nil {
			return nil, err
		}
		var id int64
		if err := db.QueryRow(ctx, "INSERT INTO orders (customer, cents, receipt) VALUES ($1, $2, $3) RETURNING id", user["user"], int(cents+quote.Cents), text(paid, "receipt")).Scan(&id); err != nil {
			return nil, fmt.Errorf("orders: %w", err)
		}
		_, err = call(ctx, "cart", "Empty", user)
		return message{"order": float64(id), "cents": cents + quote.Cents}, err
	}})}, nil
}

// payment takes any amount.
func payment() ([]door, error) {
	return []door{grpcDoor("8080", "payment", map[string]method{"Charge": func(_ context.Context, in message) (message, error) {
		return message{"receipt": fmt.Sprintf("r%x", rand.Uint64()), "cents": in["cents"]}, nil
	}})}, nil
}

// shipping costs by the number of things.
func shipping() ([]door, error) {
	mux := http.NewServeMux()
	handle(mux, "POST /quote", func(r *http.Request) (any, error) {
		var items map[string]string
		if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
			return nil, err
		}
		return message{"cents": 300 + 90*len(items)}, nil
	})
	return []door{httpDoor("8080", mux)}, nil
}

// prices sends the prices of the moment by WebSocket, each second. Sessions end with code 1001 when the service does.
func prices() ([]door, error) {
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	end, mux := make(chan struct{}), http.NewServeMux()
	var open sync.WaitGroup
	mux.HandleFunc("GET /prices", func(w http.ResponseWriter, r *http.Request) {
		c, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		open.Add(1)
		defer open.Done()
		defer c.Close()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			now := message{}
			for item, cents := range goods {
				now[item] = cents.(float64) * (0.9 + rand.Float64()/5)
			}
			if err := errors.Join(c.SetWriteDeadline(time.Now().Add(callTimeout)), c.WriteJSON(now)); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-end:
				_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseGoingAway, "another replica goes on"), time.Now().Add(time.Second))
				return
			}
		}
	})
	d := httpDoor("8080", mux)
	shutdown := d.stop
	d.stop = func(ctx context.Context) error {
		close(end)
		open.Wait()
		return shutdown(ctx)
	}
	return []door{d}, nil
}
