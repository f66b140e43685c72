/* drivers.c - the one place that names the drivers. */
#include <string.h>

#include "core/driver.h"

extern const mw_driver mw_driver_memory, mw_driver_memory_offset, mw_driver_embedded, mw_driver_redis,
    mw_driver_amqp, mw_driver_kafka;

const mw_driver *const mw_drivers[] = {&mw_driver_memory,
                                       &mw_driver_memory_offset,
                                       &mw_driver_embedded,
                                       &mw_driver_redis,
                                       &mw_driver_amqp,
                                       &mw_driver_kafka,
                                       NULL};

const mw_driver *mw_driver_find(const char *scheme) {
    for (int i = 0; mw_drivers[i]; i++)
        for (int k = 0; mw_drivers[i]->schemes[k]; k++)
            if (strcmp(mw_drivers[i]->schemes[k], scheme) == 0) return mw_drivers[i];
    return NULL;
}
