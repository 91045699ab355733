import concurrent.futures
import threading


class Threads:
    def initialize(self, context):
        self.ticks = threading.Semaphore(0)
        self.stop = threading.Event()
        threading.Thread(target=self.tick, daemon=True).start()
        self.pool = concurrent.futures.ThreadPoolExecutor(2)

    def tick(self):
        while not self.stop.wait(0.01):
            self.ticks.release()

    def handle(self, data, context):
        self.ticks.acquire(timeout=30)
        main = threading.current_thread() is threading.main_thread()
        return [{"doubled": list(self.pool.map(lambda x: x * 2, row["body"])), "main thread": main} for row in data]
